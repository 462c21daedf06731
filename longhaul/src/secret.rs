//! Secrets: from a prompt, a file or an environment variable, never from an argument.
