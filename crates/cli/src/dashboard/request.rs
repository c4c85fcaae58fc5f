//! What a browser asks for: the head of a request, within limits, and whether it may ask.

use std::net::IpAddr;

/// Bytes of a request's head.
pub const HEAD_BYTES_MAX: usize = 8 << 10;

/// Something is asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Whether only the head of the answer is wanted.
    pub head_only: bool,
    /// The path, without what follows `?`.
    pub path: &'a str,
    /// What follows `?`.
    pub query: &'a str,
    /// Who it is addressed to.
    pub host: &'a str,
    /// Whether the connection stays for more.
    pub keep_alive: bool,
}

/// A request that is refused: its status, and why.
pub type Refusal = (u16, &'static str);

impl Request<'_> {
    /// Bytes of the head that these begin with, its empty line included.
    pub fn length(bytes: &[u8]) -> Option<usize> {
        bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|start| start + 4)
    }

    /// Reads a whole head.
    pub fn parse(head: &[u8]) -> Result<Request<'_>, Refusal> {
        const GARBAGE: Refusal = (400, "not a request");
        let is_text = |byte: &u8| matches!(byte, b' '..=b'~' | b'\r' | b'\n' | b'\t');
        let head = std::str::from_utf8(head).ok().filter(|head| head.bytes().all(|byte| is_text(&byte)));
        let mut lines = head.ok_or(GARBAGE)?.trim_end().split("\r\n");
        let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
        let &[method, target, version] = &words[..] else { return Err(GARBAGE) };
        if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
            return Err(GARBAGE);
        }
        if !["GET", "HEAD"].contains(&method) {
            return Err((405, "nothing here can be changed: only GET and HEAD are answered"));
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut keep_alive = version != "HTTP/1.0";
        let mut host = None;
        for line in lines {
            let (name, value) = line.split_once(':').ok_or(GARBAGE)?;
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "host" if host.is_some() => return Err((400, "more than one Host")),
                "host" => host = Some(value),
                "connection" if value.eq_ignore_ascii_case("close") => keep_alive = false,
                // What would follow the head is nothing to be read as another request.
                "content-length" if value == "0" => {}
                "content-length" | "transfer-encoding" => return Err((400, "a request has no body here")),
                _ => {}
            }
        }
        let host = host.ok_or((400, "no Host"))?;
        Ok(Request { head_only: method == "HEAD", path, query, host, keep_alive })
    }

    /// The number that the query gives by this name, the only one that it may have.
    pub fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        if self.query.is_empty() {
            return Ok(None);
        }
        let number = self.query.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
        let digits = number.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        digits.and_then(|digits| digits.parse().ok()).map(Some).ok_or((400, "not a query that is understood"))
    }

    /// Whether it is addressed to this machine's own name, or to the address that is served. A page of someone else can
    /// make a name of theirs lead here, and would then be let in as if it were ours; the port says nothing about that, and
    /// is another one behind a tunnel.
    pub fn is_addressed_to(&self, served: IpAddr) -> bool {
        let host = match self.host.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => host,
            _ => self.host,
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match bare.parse::<IpAddr>() {
            Ok(address) => address.is_loopback() || address == served || served.is_unspecified(),
            Err(_) => host.eq_ignore_ascii_case("localhost"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Request<'_>, u16> {
        Request::parse(text.as_bytes()).map_err(|(status, _)| status)
    }

    #[test]
    fn a_request_is_read() {
        let text = "GET /runs/0/metrics?from=12 HTTP/1.1\r\nHost: localhost:6007\r\nAccept: */*\r\n\r\nGET";
        assert_eq!(Request::length(text.as_bytes()), Some(text.len() - 3));
        assert_eq!(Request::length(&text.as_bytes()[..text.len() - 4]), None);
        let request = parsed(&text[..text.len() - 3]).unwrap();
        assert_eq!((request.path, request.query, request.host), ("/runs/0/metrics", "from=12", "localhost:6007"));
        assert!(request.keep_alive && !request.head_only);
        assert_eq!(request.number("from"), Ok(Some(12)));
        assert!(request.number("after").is_err());
        let request = parsed("HEAD / HTTP/1.0\r\nhost: [::1]\r\n\r\n").unwrap();
        assert!(!request.keep_alive && request.head_only);
        assert_eq!(request.number("from"), Ok(None));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (text, status) in [
            ("", 400),
            ("\r\n\r\n", 400),
            ("GET /\r\n\r\n", 400),
            ("GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
            ("GET / HTTP/2\r\nHost: localhost\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            ("GET /\u{e9} HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
            ("DELETE /runs/0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        ] {
            assert_eq!(parsed(text).err(), Some(status), "{text}");
        }
        for query in ["from=", "from=-1", "from=1&from=2", "from=99999999999999999999", "from=+1", "from", "to=1"] {
            let text = format!("GET /?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let refused = parsed(&text).unwrap().number("from").is_err();
            assert!(refused, "{query}");
        }
    }

    #[test]
    fn only_the_own_addresses_are_answered() {
        let is_let_in = |host: &str, served: &str| {
            let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            parsed(&text).unwrap().is_addressed_to(served.parse().unwrap())
        };
        for host in ["localhost", "LocalHost:6007", "127.0.0.1:80", "127.0.0.1", "[::1]:6007", "[::1]"] {
            assert!(is_let_in(host, "127.0.0.1") && is_let_in(host, "10.1.2.3"), "{host}");
        }
        let elsewhere = [
            "evil.example",
            "evil.example:6007",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.1.2.4",
            "",
            ":1",
        ];
        for host in elsewhere {
            assert!(!is_let_in(host, "127.0.0.1") && !is_let_in(host, "10.1.2.3"), "{host}");
        }
        assert!(is_let_in("10.1.2.3:6007", "10.1.2.3") && !is_let_in("10.1.2.3:6007", "127.0.0.1"));
        // Who serves on every address is asked by any of them, but by no name.
        assert!(is_let_in("10.1.2.3:6007", "0.0.0.0") && !is_let_in("evil.example:6007", "0.0.0.0"));
    }
}
