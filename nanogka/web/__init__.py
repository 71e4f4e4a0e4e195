"""Parts that all HTML pages share: the shell, colors in light and dark, and small helpers of their scripts."""
