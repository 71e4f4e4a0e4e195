"""Numbers as people read them."""


def duration(seconds: float) -> str:
    """Seconds as people say them: 45s, 3m05s, 2h10m, 1d03h."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02d}h"


def si(number: float) -> str:
    """A number with an SI prefix and three digits: 12.3k, 4.57M, 2.78G."""
    for factor, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.3g}{prefix}"
    return f"{number:.3g}"
