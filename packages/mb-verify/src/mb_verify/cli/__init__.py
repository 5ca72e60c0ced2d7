"""Program `mb-verify` (extra `cli`), and the commands that trainers mount."""
