"""GPUs of this machine without torch, their environment variables, and NUMA binding."""
