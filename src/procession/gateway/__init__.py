"""The gateway: the process that talks to the producers, keeps what they send, and tells them what is committed."""
