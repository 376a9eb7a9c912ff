"""HTTP handlers, one module per resource. Each handler runs a use case and turns its result into a response."""
