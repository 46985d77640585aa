//! Nonsense at the agent's door.

use crate::fuzz::{Rng, bytes, mutate, word};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};
use std::time::Duration;

/// What a request looks like.
const REQUESTS: [&str; 6] = [
    r#"{"Join":{"identity":{"job":"j","program":"p","rank":0,"size":1,"unit":0,"units":1},"cpus":[1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}}"#,
    r#"{"Extent":{"peer":1,"incarnation":1,"bytes":4096}}"#,
    r#"{"GiveBack":{"peer":1,"incarnation":1,"offset":67108864,"bytes":2097152}}"#,
    r#"{"Leave":{"peer":1,"incarnation":1}}"#,
    r#""Facts""#,
    r#"[]"#,
];

/// Says something to the agent of `domain` that is no request, or an untrue one, and may not wait for the answer.
/// Whether the agent was there.
pub fn knock(domain: &str, random: &mut Rng) -> bool {
    let text = request(random);
    // Whoever did not take the answer has gone without a word.
    let is_patient = random.u32(..4) > 0;
    say(domain, &text, is_patient).is_ok()
}

fn request(random: &mut Rng) -> Vec<u8> {
    let known = random.choice(REQUESTS).unwrap_or_default();
    let mut text = known.as_bytes().to_vec();
    match random.u32(..5) {
        0 => mutate(random, &mut text),
        1 => text = bytes(random, 2000),
        2 => text.extend(vec![b'['; random.usize(..100_000)]),
        // Other numbers in a request that can be read.
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

fn say(domain: &str, text: &[u8], is_patient: bool) -> rustix::io::Result<()> {
    let uid = rustix::process::getuid().as_raw();
    let address = SocketAddrUnix::new_abstract_name(format!("samite/{uid}/{domain}").as_bytes())?;
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    let second = Some(Duration::from_secs(1));
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, second)?;
    rustix::net::connect(&socket, &address)?;
    // One that says nothing, or too much, is not the agent's concern either.
    let _ = rustix::net::send(&socket, text, SendFlags::NOSIGNAL);
    if is_patient {
        let _ = rustix::net::recv(&socket, &mut [0; 4096], RecvFlags::empty());
    }
    Ok(())
}
