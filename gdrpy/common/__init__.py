"""What every room uses: checks of arguments, and what closes."""
