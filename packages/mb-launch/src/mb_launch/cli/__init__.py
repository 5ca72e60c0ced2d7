"""Program `mb-launch` (extra `cli`), whose commands and options trainers add to their own."""
