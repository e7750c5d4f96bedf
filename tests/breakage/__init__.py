"""The day things break."""
