//! Listeners: a TCP port or a Unix socket, with the protocols and options of its connections.

use std::{
    fs, io,
    net::{self, Ipv4Addr, SocketAddr},
    os::unix::{self, fs::FileTypeExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream, lookup_host};

use super::{BindError, connection_options::ConnectionOptions, tls::Tls};
use base::stats::Lateness;

/// The address reported for clients of a Unix socket, which have none.
pub const NO_ADDRESS: SocketAddr = SocketAddr::new(net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Backlog of a TCP listener: as many connections as the system allows (`net.core.somaxconn`, 4,096 since Linux 5.4). Clients
/// beyond it retry after a second.
const BACKLOG: u32 = 65_535;

/// A bound listener. One that is converted from a plain TCP listener speaks HTTP/1.1 only.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    pub(super) http2: bool,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) options: ConnectionOptions,
    pub(super) lateness: Option<Arc<Lateness>>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// An accepted connection that is not registered with a runtime yet.
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
        Self { socket, http2: false, tls: None, options: ConnectionOptions::default(), lateness: None }
    }

    /// Accepts HTTP/2 too, where the client begins with it.
    #[must_use]
    pub fn with_http2(self) -> Self {
        Self { http2: true, ..self }
    }

    /// Sets the options of its connections.
    #[must_use]
    pub fn with_options(self, options: ConnectionOptions) -> Self {
        Self { options, ..self }
    }

    /// Records the lateness of events in `lateness`.
    #[must_use]
    pub fn with_lateness(self, lateness: Arc<Lateness>) -> Self {
        Self { lateness: Some(lateness), ..self }
    }

    /// Accepts connections over TLS only.
    #[must_use]
    pub fn with_tls(self, tls: Tls) -> Self {
        Self { tls: Some(Arc::new(tls)), ..self }
    }

    /// The address that is listened on; `None` for a Unix socket.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix(_) => None,
        }
    }

    /// Where it is; `None` for a Unix socket without a path.
    #[must_use]
    pub fn place(&self) -> Option<ListenerPlace> {
        let address = match &self.socket {
            Socket::Tcp(listener) => PlaceAddress::Tcp(listener.local_addr().ok()?),
            Socket::Unix(listener) => PlaceAddress::Unix(listener.local_addr().ok()?.as_pathname()?.to_owned()),
        };
        Some(ListenerPlace { address, tls: self.tls.clone() })
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

/// Address of a listener that is gone, for another one.
#[derive(Debug, Clone)]
pub struct ListenerPlace {
    address: PlaceAddress,
    tls: Option<Arc<Tls>>,
}

#[derive(Debug, Clone)]
enum PlaceAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl ListenerPlace {
    /// Listens there again, with TLS where it was so.
    ///
    /// # Errors
    /// When something else listens there.
    pub async fn listen(&self) -> Result<Listener, BindError> {
        let listener = match &self.address {
            PlaceAddress::Tcp(address) => Listener::from(super::bind(&address.to_string()).await?),
            PlaceAddress::Unix(path) => Listener::from(bind_unix(path).await?),
        };
        Ok(Listener { tls: self.tls.clone(), ..listener })
    }
}

/// Listens on a Unix socket at `path`. A stale socket is replaced, any other file is not.
///
/// # Errors
/// When another program listens there, or the socket cannot be created.
pub async fn bind_unix(path: &Path) -> Result<UnixListener, BindError> {
    let address = path.display().to_string();
    let found = fs::symlink_metadata(path).ok().map(|found| found.file_type().is_socket());
    if found == Some(false) {
        return Err(BindError::NoSocket(address));
    }
    if found == Some(true) {
        if UnixStream::connect(path).await.is_ok() {
            return Err(BindError::InUse(address));
        }
        fs::remove_file(path).map_err(|source| BindError::Other { address: address.clone(), source })?;
    }
    UnixListener::bind(path).map_err(|source| BindError::Other { address, source })
}

/// Listens on the first address of a name that can be bound.
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
    // Otherwise the port stays unusable while connections of an earlier process are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
