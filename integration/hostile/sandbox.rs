//! A sandbox that has gone, and whose number another process has.
