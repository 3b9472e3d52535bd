//! The userspace driver of the Verbena card
