"""MARFT's agent profiles: teams whose agents speak in turn about a problem, for several rounds."""
