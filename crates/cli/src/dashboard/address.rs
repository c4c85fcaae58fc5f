//! Where the page is served: a port of this machine, or an address that others reach.

use gradus_train::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::str::FromStr;

/// The port where none is stated and nobody has it.
const PORT: u16 = 6007;

/// `PORT` or `ADDRESS:PORT`; port 0 is any that is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(SocketAddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let local = |port: &str| port.parse().ok().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let address = text.parse().ok().or_else(|| local(text.strip_prefix("localhost:").unwrap_or(text)));
        address.map(Address).ok_or_else(|| {
            "give a port such as 6007, or an address and a port such as 0.0.0.0:6007; a corpus stands before --dashboard"
                .into()
        })
    }
}

/// Listens where it is stated; else at the usual port, or at one that is free.
pub fn listen(stated: Option<Address>) -> Result<TcpListener> {
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (address, listener) = match stated {
        Some(Address(address)) => (address, TcpListener::bind(address)),
        None => (any, TcpListener::bind(usual).or_else(|_| TcpListener::bind(any))),
    };
    listener.map_err(|error| {
        Error::Config(format!("the dashboard cannot be served at {address}: {error}; give another port, or 0 for any"))
    })
}

/// What is to be known of an address that not only this machine reaches.
pub fn caution(address: IpAddr) -> &'static str {
    if address.is_loopback() { "" } else { " (whoever reaches this address can read the run)" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_every_form() {
        for (text, address) in [
            ("8080", "127.0.0.1:8080"),
            ("0", "127.0.0.1:0"),
            ("localhost:8080", "127.0.0.1:8080"),
            ("0.0.0.0:6007", "0.0.0.0:6007"),
            ("[::1]:6007", "[::1]:6007"),
        ] {
            assert_eq!(text.parse(), Ok(Address(address.parse().unwrap())), "{text}");
        }
        for text in ["", "text.txt", "65536", "-1", "0.0.0.0", "example.org:80", "localhost", "1.2.3.4:x"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_port_that_is_taken_is_refused_if_it_was_stated() {
        let taken = listen(Some("0".parse().unwrap())).unwrap();
        let address = taken.local_addr().unwrap();
        let refusal = listen(Some(Address(address))).unwrap_err().to_string();
        assert!(refusal.contains(&address.to_string()) && refusal.contains("another port"), "{refusal}");
        // The usual port or another one.
        for listener in [listen(None), listen(None)] {
            let address = listener.unwrap().local_addr().unwrap();
            assert!(address.ip().is_loopback(), "{address} is this machine's alone");
        }
    }
}
