//! Files that are read whole, of bounded length: a device never ends, and a sparse file may be longer than memory.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// The most bytes of a file that people write by hand: a configuration, a script, a list of values.
pub const BY_HAND: u64 = 16 << 20;

/// Reads a file of at most so many bytes.
///
/// # Errors
/// When it cannot be read, or is longer; a file whose metadata shows it is not read then.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let found = file.metadata()?;
    let too_long =
        || io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {most} bytes, the most that is read"));
    let mut bytes = Vec::new();
    if found.is_file() && found.len() > most {
        return Err(too_long());
    }
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_long()) } else { Ok(bytes) }
}

/// Reads a text that people write by hand, of at most [`BY_HAND`] bytes.
///
/// # Errors
/// As [`read`], and when it is no UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let text = String::from_utf8(read(path, BY_HAND)?);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_file_is_refused_and_one_without_an_end_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(read(&path, 3).unwrap(), b"abc");
        assert_eq!(read(&path, 2).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_text(&path).unwrap(), "abc");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(read_text(&path).unwrap_err().to_string().contains("more than 16777216 bytes"));
        #[cfg(target_os = "linux")]
        assert_eq!(read_text(Path::new("/dev/zero")).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
