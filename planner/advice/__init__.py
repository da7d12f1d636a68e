"""What a plan's figures mean and what would change them: explanations, what-ifs, calibration, advice."""
