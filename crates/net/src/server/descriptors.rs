//! The limit of open files, which bounds the connections that a server can hold.

use std::io;

use rustix::{
    io::Errno,
    process::{Resource, getrlimit, setrlimit},
};

/// Raises this process' soft limit of open files to the hard limit and returns it; `None` where there is none.
///
/// Every connection takes one. Systems usually start programs with 1,024 and allow far more.
pub fn raise_descriptor_limit() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return limit.current;
    }
    let before = limit.current;
    limit.current = limit.maximum;
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.current,
        Err(error) => {
            tracing::debug!(%error, "cannot raise the limit of open files");
            before
        }
    }
}

/// Builds the log message for a connection that could not be accepted.
pub(super) fn accept_error(error: &io::Error) -> String {
    let of_process = error.raw_os_error() == Some(Errno::MFILE.raw_os_error());
    match getrlimit(Resource::Nofile).current {
        Some(limit) if of_process => format!(
            "connections wait: all {limit} files that this process may have open are in use (raise it: ulimit -n, or \
             LimitNOFILE in a systemd unit)"
        ),
        _ => "cannot accept a connection".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_as_high_as_it_may_be() {
        let raised = raise_descriptor_limit();
        assert_eq!(raised, getrlimit(Resource::Nofile).current);
        assert_eq!(raise_descriptor_limit(), raised);
    }

    #[test]
    fn a_full_table_of_files_has_its_own_message() {
        let full = io::Error::from_raw_os_error(Errno::MFILE.raw_os_error());
        assert!(accept_error(&full).contains("ulimit -n"));
        assert_eq!(accept_error(&io::ErrorKind::ConnectionAborted.into()), "cannot accept a connection");
    }
}
