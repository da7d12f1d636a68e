"""`holmes ps`, `status`, `logs`, `attach` and `stop`: runs that were launched, found again and ended."""
