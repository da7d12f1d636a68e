"""Meaning and improvement of a plan's figures: explanations, what-ifs, calibration, advice."""
