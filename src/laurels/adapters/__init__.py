"""The technologies behind the ports. Only `wiring` imports from here."""
