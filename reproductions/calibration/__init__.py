"""How often every audit alarms without a leak, finds a planted one, and covers the truth."""
