"""Tools that come with Procession: two to try things out, and the stand-in for tools of the caller."""
