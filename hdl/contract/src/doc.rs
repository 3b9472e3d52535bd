//! Prints the tables as the page `docs/registers.md`; a test holds the committed page against it.
