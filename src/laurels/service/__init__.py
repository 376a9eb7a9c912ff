"""The use cases. They depend on the ports and the core, never on adapters."""
