//! Where connections come from: a TCP port or a Unix socket, and the versions of HTTP that are spoken there.

use std::{
    fs, io,
    net::{self, Ipv4Addr, SocketAddr},
    os::unix::{self, fs::FileTypeExt},
    path::Path,
    sync::Arc,
};

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream, lookup_host};

use super::{BindError, manners::Manners, tls::Tls};
use crate::base::stats::Lateness;

/// The address that clients of a Unix socket are said to have: they have none.
pub const NO_ADDRESS: SocketAddr = SocketAddr::new(net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Connections that may wait to be accepted over TCP: as many as the system allows (`net.core.somaxconn`, 4,096 since Linux
/// 5.4), as those of a Unix socket are anyway. Clients that connect at once beyond that wait a second for their second try.
const BACKLOG: u32 = 65_535;

/// A bound listener. A plain TCP listener becomes one that speaks HTTP/1.1 only.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    pub(super) versions: Versions,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) manners: Manners,
    pub(super) lateness: Option<Arc<Lateness>>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The versions of HTTP that are spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Versions {
    Http1,
    /// HTTP/2 where the client begins with it.
    Both,
}

/// An accepted connection, which no runtime knows yet.
#[derive(Debug)]
pub(super) enum Accepted {
    Tcp(net::TcpStream, SocketAddr),
    Unix(unix::net::UnixStream),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::new(Socket::Tcp(listener))
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::new(Socket::Unix(listener))
    }
}

impl Listener {
    fn new(socket: Socket) -> Self {
        Self { socket, versions: Versions::Http1, tls: None, manners: Manners::default(), lateness: None }
    }

    /// The same, speaking HTTP/2 too.
    #[must_use]
    pub fn with_http2(self) -> Self {
        Self { versions: Versions::Both, ..self }
    }

    /// The same, behaving so.
    #[must_use]
    pub fn with_manners(self, manners: Manners) -> Self {
        Self { manners, ..self }
    }

    /// The same, counting there how late events leave.
    #[must_use]
    pub fn with_lateness(self, lateness: Arc<Lateness>) -> Self {
        Self { lateness: Some(lateness), ..self }
    }

    /// The same, behind TLS.
    #[must_use]
    pub fn with_tls(self, tls: Tls) -> Self {
        Self { tls: Some(Arc::new(tls)), ..self }
    }

    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok(Accepted::Tcp(stream.into_std()?, peer))
            }
            Socket::Unix(listener) => Ok(Accepted::Unix(listener.accept().await?.0.into_std()?)),
        }
    }
}

/// Listens on a Unix socket at `path`. A socket that no program listens on any more is replaced; any other file is not.
///
/// # Errors
/// When another program listens there, or the socket cannot be made.
pub async fn bind_unix(path: &Path) -> Result<UnixListener, BindError> {
    let address = path.display().to_string();
    let found = fs::symlink_metadata(path).ok().map(|found| found.file_type().is_socket());
    if found == Some(false) {
        return Err(BindError::NoSocket { address });
    }
    if found == Some(true) {
        if UnixStream::connect(path).await.is_ok() {
            return Err(BindError::InUse { address });
        }
        fs::remove_file(path).map_err(|source| BindError::Other { address: address.clone(), source })?;
    }
    UnixListener::bind(path).map_err(|source| BindError::Other { address, source })
}

/// Listens on the first address of a name that can be had.
pub(super) async fn listen(address: &str) -> io::Result<TcpListener> {
    let mut failed = None;
    for address in lookup_host(address).await? {
        match listen_on(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the name has no address")))
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A port whose connections of an earlier process have not timed out yet can be had again.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
