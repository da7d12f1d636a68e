"""Examples for fine-tuning: prompts and conversations, as tokens packed in sequences."""
