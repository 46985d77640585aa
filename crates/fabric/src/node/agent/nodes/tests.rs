//! Agents of several nodes in one process, on the loopback device.

use super::*;
use std::io::Write;

const SECRET: &str = "the secret of a test";

fn network(name: &str, join: Option<String>) -> Network {
    Network {
        name: name.into(),
        listen: ([127, 0, 0, 1], 0).into(),
        join,
        secret: Secret::of(SECRET).unwrap(),
        transport: FarTransport::default(),
    }
}

/// Returns why a node cannot join.
fn why_not(network: &Network) -> String {
    Nodes::begin("test", network).unwrap_err().to_string()
}

/// Whoever joins is told what is wrong with what answers.
#[test]
fn what_is_no_agent_of_this_version_is_told_from_a_silent_address() {
    let answers: [(&'static [u8], &str); 3] = [
        (b"samite\0\x63 and more", "is of another version of Samite"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no agent of Samite"),
        (b"SSH-2.0-", "is no agent of Samite"),
    ];
    for (answer, says) in answers {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answer).unwrap();
            stream
        });
        let why = why_not(&network("one", Some(address.clone())));
        assert!(why.contains(&address) && why.contains(says), "{why}");
        other.join().unwrap();
    }
}

#[test]
fn an_agent_listens_on_one_interface() {
    for any in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"] {
        let listen = any.parse().unwrap();
        let why = why_not(&Network {
            listen,
            ..network("one", None)
        });
        assert!(why.contains("name an address of this machine"), "{why}");
    }
}
