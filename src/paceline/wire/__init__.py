"""How do processes of a run talk: frames over TCP between peers that know the run's token, optionally in TLS."""
