"""The adapters: implementations of the ports. Only `wiring` imports them."""
