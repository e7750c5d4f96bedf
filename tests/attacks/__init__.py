"""What somebody does who holds a login and means harm; each attack is a real login's, never a superuser's SET ROLE."""
