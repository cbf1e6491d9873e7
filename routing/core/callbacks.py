"""When a callback is sent again. Pure."""


def again_after_s(number: int, *, base_s: float, longest_s: float, chance: float) -> float:
    """Seconds after try `number` (the first is 1) until the next: base · 2^(number-1), at most the longest, jittered.

    `chance` is uniform in [0, 1), drawn by the caller.
    """
    return float(min(longest_s, base_s * 2 ** min(number - 1, 32)) * (0.5 + chance))
