"""The commands as the user sees them: names, flags, help. Each body imports what it needs when it runs."""
