"""One module a noun; each handler turns a call into a use case and its result into an answer."""
