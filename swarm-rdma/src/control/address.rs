//! Addresses of pools on memory nodes, as given on a command line.
//!
//! ```text
//! rdma://ETCD[,ETCD…]/POOL      the pool POOL, known to etcd at these addresses (host:port)
//! rdma:FILE                     the pool on the memory nodes that a file lists
//! ```

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::error::Error;

/// The default port of etcd.
const ETCD_PORT: u16 = 2379;
/// The longest name of a pool or of a node.
const MAX_NAME: usize = 64;

/// Where the control plane of a pool is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolAddress {
    /// By name, in etcd.
    Etcd {
        /// `host:port` of etcd's members.
        members: Vec<String>,
        /// The pool's name.
        pool: String,
    },
    /// On the memory nodes that a file lists.
    Static(PathBuf),
}

impl PoolAddress {
    /// Returns whether `text` names a pool on memory nodes rather than a directory.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("rdma:")
    }
}

impl FromStr for PoolAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |why: String| Error::Address { address: text.to_owned(), why };
        let Some(rest) = text.strip_prefix("rdma:") else {
            return Err(bad("it does not begin with `rdma:`".to_owned()));
        };
        let Some(rest) = rest.strip_prefix("//") else {
            if rest.is_empty() {
                return Err(bad("it names no file".to_owned()));
            }
            return Ok(Self::Static(PathBuf::from(rest)));
        };
        let Some((members, pool)) = rest.split_once('/') else {
            return Err(bad("it names no pool".to_owned()));
        };
        Ok(Self::Etcd {
            members: parse_members(members).map_err(bad)?,
            pool: parse_name(pool).map_err(bad)?,
        })
    }
}

impl fmt::Display for PoolAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Etcd { members, pool } => write!(f, "rdma://{}/{pool}", members.join(",")),
            Self::Static(file) => write!(f, "rdma:{}", file.display()),
        }
    }
}

/// Parses etcd's members: `host[:port],…`, with or without `http://`.
///
/// # Errors
/// What is wrong with them.
pub fn parse_members(text: &str) -> Result<Vec<String>, String> {
    text.split(',')
        .map(|member| {
            let member = member.trim().trim_start_matches("http://").trim_end_matches('/');
            if member.is_empty() || member.contains(['/', ' ', '@']) {
                return Err(format!("`{member}` is no etcd member; give it as host:port"));
            }
            let has_port = member
                .rsplit_once(':')
                .is_some_and(|(_, port)| !port.contains(']') && port.parse::<u16>().is_ok());
            if has_port {
                return Ok(member.to_owned());
            }
            let bare = !member.contains(':') || member.ends_with(']');
            bare.then(|| format!("{member}:{ETCD_PORT}"))
                .ok_or_else(|| format!("`{member}` does not end with a port"))
        })
        .collect()
}

/// Parses the name of a pool or a node: letters, digits, `-`, `_` and `.`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_name(text: &str) -> Result<String, String> {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || text.len() > MAX_NAME || !text.bytes().all(sound) {
        return Err(format!(
            "`{text}` is no name; a name has 1 to {MAX_NAME} letters, digits, `-`, `_` and `.`"
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_apart_as_they_are_written() {
        for text in ["rdma://a:2379,b:1/pool", "rdma://[::1]:2379/p-1", "rdma:/etc/nodes.toml"] {
            assert_eq!(text.parse::<PoolAddress>().expect("it is sound").to_string(), text);
        }
        let short = "rdma://http://a,[::1]/p".parse::<PoolAddress>();
        assert!(short.is_err(), "a scheme within an address is ambiguous: {short:?}");
        let short: PoolAddress = "rdma://a,[::1]/p".parse().expect("it is sound");
        assert_eq!(short.to_string(), "rdma://a:2379,[::1]:2379/p");
    }

    #[test]
    fn what_is_wrong_with_an_address_is_reported() {
        for (text, reason) in [
            ("rdma:", "names no file"),
            ("rdma://a:1", "names no pool"),
            ("rdma:///pool", "no etcd member"),
            ("rdma://a:1/", "is no name"),
            ("rdma://a:1/x/y", "is no name"),
            ("rdma://a:b/x", "port"),
            ("/dev/shm/pool", "does not begin"),
        ] {
            let error = text.parse::<PoolAddress>().expect_err(text).to_string();
            assert!(error.contains(reason) && error.contains(text), "{error}");
        }
    }
}
