"""What a launch would do, decided without touching anything: files, environment, commands."""
