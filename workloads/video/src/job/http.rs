//! A server of a few small pages: HTTP/1.1, as far as a browser needs it.
//!
//! It trusts nobody:
//! * Only GET is answered. A request has at most [`HEAD`] bytes and no body.
//! * A connection ends after one answer, and when the request, or taking the answer, lasts longer
//!   than [`PATIENCE`].
//! * There are at most [`CONNECTIONS`] at a time; further ones are closed at once.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const HEAD: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
const CONNECTIONS: usize = 16;
/// What is read, and how long, of what comes after a request: a connection that is closed with
/// bytes that nobody has read may take the answer with it.
const REST: usize = 64 << 10;
const RESTS: Duration = Duration::from_secs(1);
/// The time until it looks again if the system has no connection to give.
const PAUSE: Duration = Duration::from_millis(100);

/// The answer to a request.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// The type of the body.
    pub(super) kind: &'static str,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn page(kind: &'static str, body: impl Into<Vec<u8>>) -> Answer {
        Answer {
            status: 200,
            kind,
            body: body.into(),
        }
    }

    /// An answer without a body.
    pub(super) fn only(status: u16) -> Answer {
        Answer {
            status,
            ..Answer::default()
        }
    }
}

/// A running server. Its drop ends it; connections that it has may last a little longer.
pub(super) struct HttpServer {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
}

impl HttpServer {
    /// Starts it. `pages` answers the path of a request, in any thread.
    pub(super) fn start(
        address: SocketAddr,
        pages: impl Fn(&str) -> Answer + Send + Sync + 'static,
    ) -> Result<HttpServer> {
        let listener = TcpListener::bind(address)?;
        let server = HttpServer {
            address: listener.local_addr()?,
            is_over: Arc::default(),
        };
        let is_over = Arc::clone(&server.is_over);
        std::thread::Builder::new()
            .name("live page".to_owned())
            .spawn(move || serve(&listener, &is_over, &Arc::new(pages)))?;
        Ok(server)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // So that it looks. Fails if there are too many connections; then it looks at the next one.
        _ = TcpStream::connect_timeout(&self.address, PAUSE);
    }
}

fn serve<F>(listener: &TcpListener, is_over: &AtomicBool, pages: &Arc<F>)
where
    F: Fn(&str) -> Answer + Send + Sync + 'static,
{
    // Each connection has a copy.
    let counted = Arc::new(());
    for stream in listener.incoming() {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else {
            std::thread::sleep(PAUSE);
            continue;
        };
        if Arc::strong_count(&counted) > CONNECTIONS {
            continue;
        }
        let (counts, pages) = (Arc::clone(&counted), Arc::clone(pages));
        let thread = std::thread::Builder::new().name("live page".to_owned());
        let begun = thread.spawn(move || {
            let _counts = counts;
            if let Err(error) = answer(stream, &*pages) {
                tracing::debug!(%error, "the live page");
            }
        });
        if let Err(error) = begun {
            tracing::debug!(%error, "the live page");
        }
    }
}

/// Answers the request of a connection. A browser that goes away, or does not read, is an error.
fn answer(mut stream: TcpStream, pages: &dyn Fn(&str) -> Answer) -> Result<()> {
    let answer = match read_head(&mut stream)? {
        None => Answer::only(431),
        Some(head) => path_of(&head).map_or_else(Answer::only, pages),
    };
    let Answer { status, kind, body } = answer;
    let kind = match kind {
        "" => String::new(),
        kind => format!("Content-Type: {kind}\r\n"),
    };
    let length = body.len();
    let mut bytes = format!(
        "HTTP/1.1 {status} {}\r\n{kind}Content-Length: {length}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        reason(status)
    )
    .into_bytes();
    if status == 204 {
        // It must not say how long the body is.
        bytes = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n".to_vec();
    }
    bytes.extend(body);
    write_all(&mut stream, &bytes)?;
    stream.shutdown(Shutdown::Write)?;
    read_rest(&mut stream)
}

/// Reads what comes after a request, up to a limit of bytes and of time.
fn read_rest(stream: &mut TcpStream) -> Result<()> {
    let end = Instant::now() + RESTS;
    let (mut count, mut piece) = (0, [0; 1024]);
    while count < REST {
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(&mut piece)? {
            0 => break,
            more => count += more,
        }
    }
    Ok(())
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        _ => "Bad Request",
    }
}

/// Reads up to the empty line. `None` if that does not come soon enough in the stream.
fn read_head(stream: &mut TcpStream) -> Result<Option<Vec<u8>>> {
    let end = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while head.len() < HEAD {
        stream.set_read_timeout(Some(left(end)?))?;
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&piece[..count]);
        if let Some(at) = head.windows(4).position(|part| part == b"\r\n\r\n") {
            head.truncate(at);
            return Ok(Some(head));
        }
    }
    Ok(None)
}

fn write_all(stream: &mut TcpStream, mut bytes: &[u8]) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        let count = stream.write(bytes)?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Returns the time until the end, which is not over.
fn left(end: Instant) -> Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(Error::from(ErrorKind::TimedOut)),
        false => Ok(left),
    }
}

/// Returns the path that a request asks for, or the status of its refusal.
fn path_of(head: &[u8]) -> std::result::Result<&str, u16> {
    let head = std::str::from_utf8(head).map_err(|_| 400_u16)?;
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let words = [words.next(), words.next(), words.next(), words.next()];
    let [Some(method), Some(target), Some(version), None] = words else {
        return Err(400);
    };
    if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return Err(400);
    }
    if method != "GET" {
        return Err(405);
    }
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(400_u16)?;
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        if is("transfer-encoding") || is("content-length") && value.trim() != "0" {
            return Err(413);
        }
    }
    Ok(target.split('?').next().unwrap_or(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> HttpServer {
        let here = "127.0.0.1:0".parse().unwrap();
        let pages = |path: &str| match path {
            "/page" => Answer::page("text/plain", "here"),
            // More than the buffers of a connection.
            "/large" => Answer::page("text/plain", vec![b'x'; 32 << 20]),
            _ => Answer::only(404),
        };
        HttpServer::start(here, pages).unwrap()
    }

    /// Returns the answer to a request, as far as it came.
    fn ask(server: &HttpServer, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        _ = stream.write_all(request);
        let mut answer = Vec::new();
        _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn get(server: &HttpServer) -> String {
        ask(server, b"GET /page?x=1 HTTP/1.1\r\nHost: here\r\n\r\n")
    }

    /// Waits until it is so, but not for ever.
    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < end, "not so: {what}");
        }
    }

    #[test]
    fn a_browser_that_goes_on_and_on_is_left() {
        let server = server();
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let request = b"GET /page HTTP/1.1\r\n\r\n";
        stream.write_all(request).unwrap();
        // A byte now and then, each before its read gives up.
        let mut bytes = 0;
        until("the connection ends", || {
            bytes += 1;
            std::thread::sleep(RESTS / 4);
            stream.write_all(b"x").is_err()
        });
        assert!(bytes < REST);
    }

    #[test]
    fn requests_are_answered_or_refused() {
        let server = server();
        let said = get(&server);
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
        assert!(said.ends_with(
            "Content-Length: 4\r\nCache-Control: no-store\r\nConnection: close\r\n\r\nhere"
        ));
        let long = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(HEAD));
        for (request, status) in [
            ("GET /other HTTP/1.1\r\n\r\n", "404"),
            ("POST /page HTTP/1.1\r\n\r\n", "405"),
            (
                "GET /page HTTP/1.1\r\nContent-Length: 1000000000000\r\n\r\n",
                "413",
            ),
            ("GET /page HTTP/1.1\r\nContent-Length: 2000\r\n\r\n", "413"),
            (
                "GET /page HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "413",
            ),
            ("GET /page HTTP/1.1\r\ncontent-length: 0\r\n\r\n", "200"),
            ("GET /page HTTP/1.1\r\nno header\r\n\r\n", "400"),
            ("GET page HTTP/1.1\r\n\r\n", "400"),
            ("GET /page HTTP/2\r\n\r\n", "400"),
            ("GET /a b HTTP/1.1\r\n\r\n", "400"),
            ("\r\n\r\n", "400"),
            (&*long, "431"),
        ] {
            let said = ask(&server, request.as_bytes());
            assert!(
                said.starts_with(&format!("HTTP/1.1 {status} ")),
                "{request}: {said}"
            );
        }
        assert!(ask(&server, b"\xff\xfe\r\n\r\n").starts_with("HTTP/1.1 400 "));
        assert!(get(&server).ends_with("here"));
    }

    #[test]
    fn browsers_that_do_not_read_or_ask_stop_nobody() {
        let server = server();
        let connect = || TcpStream::connect(server.address()).unwrap();
        // An answer that nobody takes, and then half of a request.
        let mut unread = connect();
        unread.write_all(b"GET /large HTTP/1.1\r\n\r\n").unwrap();
        unread.read_exact(&mut [0]).unwrap();
        let mut half = connect();
        half.write_all(b"GET /page HT").unwrap();
        assert!(get(&server).ends_with("here"));
        // So many that there is no place: others are refused.
        let more: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect()).collect();
        until("all places are taken", || !get(&server).ends_with("here"));
        drop(more);
        until("there is a place", || get(&server).ends_with("here"));
        // The half is given up, and the answer before it.
        let (mut nothing, mut rest) = (Vec::new(), Vec::new());
        _ = half.read_to_end(&mut nothing);
        _ = unread.read_to_end(&mut rest);
        assert!(nothing.is_empty() && rest.len() < 32 << 20);
    }
}
