"""The use cases. Knows the ports and the core, and no technology."""
