"""SOS, the append-only object service: its protocol, server and client, and the quorum of replicas that uses it."""
