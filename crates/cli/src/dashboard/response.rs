//! What is answered: a head with every precaution, and a body that is never held whole where it is a file's.

use super::history::Line;
use super::seats::Seat;
use serde::Serialize;
use serde_json::json;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

/// Bytes of a file that are read and sent at once.
const PIECE_BYTES: usize = 4 << 10;
/// How long a reader may take for an answer.
const TIME_MAX: Duration = Duration::from_secs(20);

/// What no answer lets a browser do: run, load, keep, frame or guess at anything but what is served here.
const PRECAUTIONS: &str = "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\nContent-Security-Policy: default-src 'none'; script-src 'self'; \
    style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n";

/// An answer.
pub struct Response {
    status: u16,
    kind: &'static str,
    body: Body,
    /// Held until the answer is sent, where it takes memory.
    _seat: Option<Seat>,
}

/// What is sent.
pub enum Body {
    /// What is part of the program.
    Fixed(&'static str),
    /// What was made for the answer.
    Text(String),
    /// Bytes of a file, from one on.
    Range(File, u64, u64),
    /// A line of its own, then lines of a file, each as `[seconds, is extreme, line]`.
    Lines(String, File, Vec<Line>),
}

impl Response {
    /// An answer of this type.
    pub fn new(kind: &'static str, body: Body) -> Response {
        Response { status: 200, kind, body, _seat: None }
    }

    /// A value as JSON.
    pub fn json(value: &impl Serialize) -> Response {
        let text = serde_json::to_string(value).expect("plain values can be written");
        Response::new("application/json", Body::Text(text))
    }

    /// Why there is no other answer.
    pub fn refusal(status: u16, problem: &str) -> Response {
        Response { status, ..Response::json(&json!({ "error": problem })) }
    }

    /// The same, with a seat that is free again once it is sent.
    pub fn seated(self, seat: Seat) -> Response {
        Response { _seat: Some(seat), ..self }
    }

    /// Sends it. An error leaves a connection that is of no more use.
    pub fn send(self, out: &mut impl Write, head_only: bool, keep_alive: bool) -> io::Result<()> {
        let head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}; charset=utf-8\r\nContent-Length: {}\r\nConnection: {}\r\n{}{PRECAUTIONS}\r\n",
            self.status,
            reason(self.status),
            self.kind,
            self.body.length(),
            if keep_alive { "keep-alive" } else { "close" },
            if self.status == 405 { "Allow: GET, HEAD\r\n" } else { "" },
        );
        out.write_all(head.as_bytes())?;
        if !head_only {
            self.body.send(&mut Timed { out, until: Instant::now() + TIME_MAX })?;
        }
        Ok(())
    }
}

/// What precedes a line of a history.
fn before(line: &Line) -> String {
    format!("[{:.3},{},", line.seconds, u8::from(line.is_extreme))
}

/// What follows it.
const AFTER: &[u8] = b"]\n";

impl Body {
    fn length(&self) -> u64 {
        match self {
            Body::Fixed(text) => text.len() as u64,
            Body::Text(text) => text.len() as u64,
            Body::Range(_, _, length) => *length,
            Body::Lines(first, _, lines) => {
                let around = |line: &Line| (before(line).len() + AFTER.len()) as u64;
                first.len() as u64 + lines.iter().map(|line| u64::from(line.length) + around(line)).sum::<u64>()
            }
        }
    }

    fn send(self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Body::Fixed(text) => out.write_all(text.as_bytes()),
            Body::Text(text) => out.write_all(text.as_bytes()),
            Body::Range(mut file, from, length) => send_range(&mut file, from, length, out),
            Body::Lines(first, mut file, lines) => {
                let mut out = io::BufWriter::with_capacity(PIECE_BYTES, out);
                out.write_all(first.as_bytes())?;
                for line in &lines {
                    out.write_all(before(line).as_bytes())?;
                    send_range(&mut file, line.offset, line.length.into(), &mut out)?;
                    out.write_all(AFTER)?;
                }
                out.flush()
            }
        }
    }
}

/// Bytes of a file; an error if it has them no more.
fn send_range(file: &mut File, from: u64, length: u64, out: &mut impl Write) -> io::Result<()> {
    let mut piece = [0; PIECE_BYTES];
    file.seek(SeekFrom::Start(from))?;
    let mut left = length;
    while left > 0 {
        let most = left.min(PIECE_BYTES as u64) as usize;
        file.read_exact(&mut piece[..most])?;
        out.write_all(&piece[..most])?;
        left -= most as u64;
    }
    Ok(())
}

/// Writes until a time, whoever reads however little at a time.
struct Timed<'a, W> {
    out: &'a mut W,
    until: Instant,
}

impl<W: Write> Write for Timed<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match Instant::now() < self.until {
            true => self.out.write(bytes),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    }
}
