"""A trained model as one HTML file that runs in any browser, offline."""
