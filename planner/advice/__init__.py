"""The meaning of a plan's figures, and changes that would improve them: explanations, what-ifs, calibration, advice."""
