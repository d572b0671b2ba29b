"""What all HTTP servers share: keys, limits, the check of Host and Origin, metrics, binding and draining."""
