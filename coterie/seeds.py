"""Seeds: hashes that are the same on every machine and in every process."""


def mix(x: int) -> int:
    """Mix 64 bits (the finalizer of SplitMix64)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 31)


def stable_hash(*parts: int | str) -> int:
    """A 63-bit hash of numbers and names (FNV-1a, mixed after each)."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        data = part.to_bytes(9, "little", signed=True) if isinstance(part, int) else part.encode()
        for byte in data:
            state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        state = mix(state ^ len(data))
    return state >> 1
