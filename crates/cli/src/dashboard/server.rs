//! The server: a thread that accepts and one for each connection, all of them few, small and short of patience.

use super::request::{HEAD_BYTES_MAX, Request};
use super::response::Response;
use super::seats::{Seat, Seats};
use super::site::Site;
use crate::background;
use std::io::{self, Read};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Connections at a time.
pub const CONNECTIONS_MAX: usize = 32;
/// What a server may come to take: 1 MB of stacks, buffers and what it knows of its runs, with all connections in use, and
/// the code that it runs besides a step's.
pub const MEMORY_BYTES: u64 = 2_700_000;
/// How long a reader may be silent, and take to send the head of a request.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long one that was refused may take to be told.
const LINGER: Duration = Duration::from_millis(200);
/// Who asked so lately is still reading.
const LATELY: Duration = Duration::from_secs(5);

/// A server that answers until it is dropped.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    site: Site,
    is_stopping: AtomicBool,
    read: Mutex<Option<Instant>>,
}

impl Server {
    /// Serves at once.
    pub fn start(listener: TcpListener, site: Site) -> io::Result<Server> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { site, is_stopping: AtomicBool::new(false), read: Mutex::new(None) });
        let accepted = shared.clone();
        let accepting = spawn(move || accept(&listener, &accepted))?;
        Ok(Server { address, shared, accepting: Some(accepting) })
    }

    /// Where the page is.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Answers for as long as the process lasts.
    pub fn stay(mut self) {
        let _ = self.accepting.take().map(JoinHandle::join);
    }

    /// Whether someone is reading.
    pub fn is_read(&self) -> bool {
        self.shared.read.lock().is_ok_and(|read| read.is_some_and(|read| read.elapsed() < LATELY))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        let mut own = self.address;
        match own {
            SocketAddr::V4(_) if own.ip().is_unspecified() => own.set_ip(Ipv4Addr::LOCALHOST.into()),
            SocketAddr::V6(_) if own.ip().is_unspecified() => own.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        // Wakes the thread that accepts.
        let woken = TcpStream::connect_timeout(&own, PATIENCE);
        if let (Ok(_), Some(accepting)) = (woken, self.accepting.take()) {
            let _ = accepting.join();
        }
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    background::spawn("dashboard", work)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let seats = Seats::new(CONNECTIONS_MAX);
    for connection in listener.incoming() {
        if shared.is_stopping.load(Ordering::Relaxed) {
            return;
        }
        match connection {
            Ok(connection) => admit(connection, seats.take(), shared),
            // As when no more files can be open: those that are will be closed.
            Err(_) => thread::sleep(LINGER),
        }
    }
}

/// Talks with whoever connected, in a thread of its own, or tells them that there is none.
fn admit(mut connection: TcpStream, seat: Option<Seat>, shared: &Arc<Shared>) {
    let ready = connection.set_write_timeout(Some(PATIENCE)).and_then(|()| connection.set_nodelay(true));
    if ready.is_err() {
        return;
    }
    let Some(seat) = seat else {
        let _ = Response::refusal(503, "too many connections; ask again").send(&mut connection, false, false);
        return;
    };
    let shared = shared.clone();
    // Where there is no thread to be had, the connection is closed with what was to run in it.
    let _ = spawn(move || {
        let _ = converse(&mut connection, &shared);
        let _ = connection.shutdown(Shutdown::Both);
        drop(seat);
    });
}

/// Answers one request after another.
fn converse(connection: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let mut bytes = vec![];
    while !shared.is_stopping.load(Ordering::Relaxed) {
        let Some(length) = read_head(connection, &mut bytes)? else {
            return refuse(connection, (431, "the request is longer than 8 KB"));
        };
        let request = match Request::parse(&bytes[..length]) {
            Ok(request) => request,
            Err(refusal) => return refuse(connection, refusal),
        };
        let keep_alive = request.keep_alive;
        shared.site.answer(&request).send(connection, request.head_only, keep_alive)?;
        if let Ok(mut read) = shared.read.lock() {
            *read = Some(Instant::now());
        }
        if !keep_alive {
            break;
        }
        bytes.drain(..length);
    }
    Ok(())
}

/// Reads until there is a whole head, and gives its length; `None` if it is too long.
fn read_head(connection: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let until = Instant::now() + PATIENCE;
    let mut piece = [0; 1024];
    loop {
        if let Some(length) = Request::length(bytes).filter(|length| *length <= HEAD_BYTES_MAX) {
            return Ok(Some(length));
        }
        if bytes.len() >= HEAD_BYTES_MAX {
            return Ok(None);
        }
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        connection.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        match connection.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => bytes.extend_from_slice(&piece[..read]),
        }
    }
}

/// Says why nothing more is answered here, and lets it be heard: to close while more comes would take it back.
fn refuse(connection: &mut TcpStream, (status, problem): (u16, &str)) -> io::Result<()> {
    Response::refusal(status, problem).send(connection, false, false)?;
    connection.shutdown(Shutdown::Write)?;
    connection.set_read_timeout(Some(LINGER))?;
    let until = Instant::now() + LINGER;
    let mut piece = [0; 1024];
    while Instant::now() < until && connection.read(&mut piece)? > 0 {}
    Ok(())
}
