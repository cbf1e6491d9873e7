"""`make demo`: sample agents at real work, beside a reach of their own: a customer of the platform, no part of it."""
