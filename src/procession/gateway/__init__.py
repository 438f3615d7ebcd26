"""The gateway: the process that receives records from producers, stores them, and acknowledges what is committed."""
