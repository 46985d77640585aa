//! Invalid requests to the agent.

use crate::fuzz::{Rng, bytes, mutate, word};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};
use std::time::Duration;

/// Examples of requests. `j` stands for a job.
const REQUESTS: [&str; 12] = [
    r#"{"Join":{"identity":{"job":"j","program":"p","rank":0,"size":1,"unit":0,"units":1},"cpus":[1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}}"#,
    r#""Confirm""#,
    r#"{"Extent":{"peer":1,"incarnation":1,"bytes":4096}}"#,
    r#"{"GiveBack":{"peer":1,"incarnation":1,"offset":67108864,"bytes":2097152}}"#,
    r#"{"Leave":{"peer":1,"incarnation":1}}"#,
    r#"{"Evict":{"peer":1,"incarnation":1,"holder":[1,1],"claim":0}}"#,
    r#"{"Roster":{"asker":{"job":"j","program":"p","rank":0,"size":1,"unit":0,"units":1},"wanted":"Job"}}"#,
    r#"{"Roster":{"asker":{"job":"j","program":"p","rank":0,"size":1,"unit":0,"units":1},"wanted":"Coming"}}"#,
    r#"{"Roster":{"asker":{"job":"j","program":"p","rank":0,"size":1,"unit":0,"units":1},"wanted":{"Program":"p"}}}"#,
    r#"{"Ended":{"job":"j","unit":0,"name":"p.0","how":"ended with exit code 3"}}"#,
    r#"{"Facts":{"after":1}}"#,
    r#"[]"#,
];
const JOIN: &str = REQUESTS[0];
const CONFIRM: &str = REQUESTS[1];

/// Sends requests to the agent of `domain` that are invalid, untrue or at the wrong time, and may
/// not wait for the answers. Returns true if the agent could be reached.
///
/// A slot that it gets is given up again at once: a member that never takes note of deaths would
/// keep the memory of all dead processes.
pub fn knock(domain: &str, random: &mut Rng) -> bool {
    let Ok(socket) = connect(domain) else {
        return false;
    };
    let mut seat = None;
    let joins = random.u32(..4) == 0;
    for turn in 0..random.u32(1..4) {
        let text = match turn {
            0 if joins => named(JOIN, domain, random).into_bytes(),
            1 if joins && random.bool() => CONFIRM.as_bytes().to_vec(),
            _ => request(domain, seat.as_ref(), random),
        };
        // If too little or too much is sent, the agent is not affected either.
        let _ = rustix::net::send(&socket, &text, SendFlags::NOSIGNAL);
        // Sometimes it leaves without a message, before it has received the answer.
        if random.u32(..4) == 0 {
            break;
        }
        let mut answer = [0; 4096];
        let heard = rustix::net::recv(&socket, &mut answer, RecvFlags::empty());
        let answer = String::from_utf8_lossy(&answer[..heard.map_or(0, |(count, _)| count)]);
        if answer.starts_with(r#"{"Joined""#) {
            let mut numbers = answer.split(|c: char| !c.is_ascii_digit());
            let mut number = || numbers.find(|digits| !digits.is_empty());
            let said = number().zip(number());
            seat = said.map(|(peer, incarnation)| (peer.to_owned(), incarnation.to_owned()));
        }
    }
    drop(socket);
    if let Some((peer, incarnation)) = seat
        && let Ok(socket) = connect(domain)
    {
        let leave = format!(r#"{{"Leave":{{"peer":{peer},"incarnation":{incarnation}}}}}"#);
        let _ = rustix::net::send(&socket, leave.as_bytes(), SendFlags::NOSIGNAL);
        let _ = rustix::net::recv(&socket, &mut [0; 4096], RecvFlags::empty());
    }
    true
}

/// A slot, as the agent reported it: peer and incarnation.
type Seat = (String, String);

/// Returns a request with the name of a job, possibly that of the others.
fn named(request: &str, domain: &str, random: &mut Rng) -> String {
    match random.bool() {
        true => request.replace(r#""j""#, &format!("\"{domain}\"")),
        false => request.to_owned(),
    }
}

fn request(domain: &str, seat: Option<&Seat>, random: &mut Rng) -> Vec<u8> {
    let known = random.choice(REQUESTS).unwrap_or_default();
    let mut known = named(known, domain, random);
    if let Some((peer, incarnation)) = seat
        && random.bool()
    {
        known = known.replace(r#""peer":1"#, &format!(r#""peer":{peer}"#));
        known = known.replace(
            r#""incarnation":1"#,
            &format!(r#""incarnation":{incarnation}"#),
        );
        // Itself: the agent kills who holds a buffer, and honest units must survive.
        known = known.replace("[1,1]", &format!("[{peer},{incarnation}]"));
    }
    let mut text = known.as_bytes().to_vec();
    match random.u32(..6) {
        0 => mutate(random, &mut text),
        1 => text = bytes(random, 2000),
        2 => text.extend(vec![b'['; random.usize(..100_000)]),
        3 => {}
        // Other numbers in a request that can still be parsed.
        _ => {
            let parts = known.split_inclusive(|c: char| !c.is_ascii_digit());
            let change = |part: &str| match part.trim_end_matches(|c: char| !c.is_ascii_digit()) {
                "" => part.to_owned(),
                digits if random.bool() => part.replace(digits, &word(random).to_string()),
                _ => part.to_owned(),
            };
            text = parts.map(change).collect::<String>().into_bytes();
        }
    }
    text
}

fn connect(domain: &str) -> rustix::io::Result<OwnedFd> {
    let uid = rustix::process::getuid().as_raw();
    let address = SocketAddrUnix::new_abstract_name(format!("samite/{uid}/{domain}").as_bytes())?;
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    let second = Some(Duration::from_secs(1));
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, second)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}
