//! Exposure of a configuration: ports that other machines reach, and files that others can read.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;

use steadfast_flow::Env;
use steadfast_live::{LiveConfig, TokenConfig};

use crate::config::{Config, EdgeBucketSpec, Webhook};
use crate::net::tls;

/// Interval between two checks of the certificate.
const CERTIFICATE_EVERY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
/// Remaining validity below which a certificate is warned of, in seconds.
const CERTIFICATE_SOON_S: i64 = 14 * 24 * 3600;

fn is_elsewhere(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// Whether a name of an address is that of this machine only.
fn is_local(name: &str) -> bool {
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Checks which ports other machines reach. Full access without credentials is refused unless
/// `live.insecure_anywhere` allows it; lesser risks become warnings.
///
/// # Errors
/// What is refused, and which setting to change.
pub(super) fn check(config: &Config, live: &LiveConfig) -> Result<Vec<String>, String> {
    let mut warnings = Vec::new();
    if let Some(listen) = config.live.listen {
        let open: Vec<&str> =
            [(live.client.insecure, "live.client.insecure"), (live.http_api.insecure, "live.http_api.insecure")]
                .into_iter()
                .filter_map(|(set, name)| set.then_some(name))
                .collect();
        let internal = live.http_server.internal()?;
        let beyond = live.http_api.insecure && internal.is_some_and(|(address, _)| !is_local(address));
        if !open.is_empty() && (beyond || is_elsewhere(listen)) && !config.live.insecure_anywhere {
            return Err(format!(
                "live.listen: other machines reach {listen}, and {} gives full access to every client that reaches it: remove \
                 it, listen on 127.0.0.1, or set live.insecure_anywhere = true to allow it",
                open.join(" and ")
            ));
        }
        if !open.is_empty() {
            warnings.push("the live port is insecure: every client has full access. For trials only".to_owned());
        }
        let tls = live.http_server.tls.enabled || (config.live.tls && config.tls.certificate.is_some());
        if is_elsewhere(listen) && !tls {
            warnings.push(format!(
                "live.listen: other machines reach {listen} without TLS: tokens and messages are sent in clear text. Set `tls`, or \
                 use a proxy that terminates TLS"
            ));
        }
    }
    if let Some(listen) = config.s3_listen().filter(|listen| is_elsewhere(*listen))
        && config.tls.certificate.is_none()
    {
        warnings.push(format!(
            "s3.listen: other machines reach {listen} without TLS: objects are sent in clear text. Set `tls`, or use a proxy that \
             terminates TLS"
        ));
    }
    if is_elsewhere(config.admin.listen) {
        let reason = match config.admin.token.0.is_empty() {
            true => "without a token: every client can read names of buckets, keys and devices. Set admin.token",
            false => "without TLS: the token is sent in clear text",
        };
        warnings.push(format!("admin.listen: other machines reach {} {reason}", config.admin.listen));
    }
    if let Some(roster) = config.cluster.roster()? {
        let listen = config.cluster.listen_address(&roster)?;
        if is_elsewhere(listen) && config.cluster.certificate.is_none() {
            warnings.push(format!(
                "cluster.listen: other machines reach {listen} without TLS: messages between nodes are sent in clear text. Set \
                 cluster.certificate and cluster.key"
            ));
        }
        warnings.extend(config.cluster.secret_warning()?);
    }
    Ok(warnings)
}

/// Warnings of configuration files with secrets that every user of the machine can read.
pub(super) fn readable_secrets(config: &Config, live: &LiveConfig) -> Vec<String> {
    let has_secret = |hook: &Webhook| !hook.authorization.text.is_empty() || !hook.secret.text.is_empty();
    let mut secrets = Vec::new();
    let own = !config.admin.token.0.is_empty()
        || !config.cluster.secret.0.is_empty()
        || config.events.webhooks.0.iter().any(has_secret)
        || config.edge.buckets.0.iter().any(EdgeBucketSpec::has_secret);
    let of_live = !live.http_api.key.is_empty()
        || !live.grpc_api.key.is_empty()
        || has_keys(&live.client.token)
        || live.client.subscription_token.in_force().is_some_and(has_keys);
    secrets.extend(config.files.iter().filter(|_| own || (of_live && config.live.config.is_none())));
    secrets.extend(config.live.config.iter().filter(|_| of_live));
    let readable = |path: &std::path::Path| {
        let mode = std::fs::metadata(path).ok()?.permissions().mode();
        let shown = path.display();
        (mode & 0o004 != 0).then(|| {
            format!(
                "{shown} holds secrets, and every user of this machine can read it (mode {:o}): chmod o= {shown}",
                mode & 0o777
            )
        })
    };
    secrets.into_iter().filter_map(|path| readable(path)).collect()
}

/// Whether a section of tokens has secret keys.
fn has_keys(token: &TokenConfig) -> bool {
    !token.hmac_secret_key.is_empty() || !token.hmac_previous_secret_key.is_empty()
}

/// The warning for a certificate that expires at `expires_s`, if it needs one.
fn certificate_warning(expires_s: i64, now_s: i64) -> Option<String> {
    let days = (expires_s - now_s).abs() / 86_400;
    match expires_s - now_s {
        ..=0 => Some(format!("tls.certificate: it expired {days} days ago: clients refuse it. Replace it and restart")),
        left if left < CERTIFICATE_SOON_S => Some(format!("tls.certificate: it expires in {days} days")),
        _ => None,
    }
}

/// Warns of a certificate that has expired or expires soon, now and once a day.
pub(super) fn watch_certificate(config: &Config, env: &Env) {
    let Some(path) = config.tls.certificate.clone() else { return };
    let inner = env.clone();
    env.spawn("certificate", async move {
        loop {
            let now_s = i64::try_from(inner.wall_ms() / 1000).unwrap_or(i64::MAX);
            // Read the file again: the operator may have replaced it for the next start.
            if let Some(warning) = tls::expires(&path).and_then(|expires_s| certificate_warning(expires_s, now_s)) {
                tracing::warn!("{warning}");
            }
            inner.sleep(CERTIFICATE_EVERY).await;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn checked(text: &str) -> Result<Vec<String>, String> {
        let config = parse(text).map_err(|e| e.to_string())?;
        let live = config.live_options().map_err(|e| e.to_string())?;
        check(&config, &live)
    }

    #[test]
    fn an_insecure_live_door_stays_on_this_machine() {
        let insecure = "[live.client]\ninsecure = true\n";
        assert_eq!(checked(insecure).expect("on this machine").len(), 1);
        for option in [insecure, "[live.http_api]\ninsecure = true\n"] {
            let refused = checked(&format!("[live]\nlisten = \"0.0.0.0:8000\"\n{option}")).expect_err("reached by all");
            assert!(refused.contains("live.insecure_anywhere"), "{refused}");
        }
        let meant = format!("[live]\nlisten = \"[::]:8000\"\ninsecure_anywhere = true\n{insecure}");
        assert_eq!(checked(&meant).expect("it is meant").len(), 2);
    }

    #[test]
    fn ports_without_tls_are_warned_of_and_served() {
        assert!(checked("").expect("valid").is_empty());
        let warnings = checked("[s3]\nlisten = \"0.0.0.0:9000\"\n[admin]\nlisten = \"10.0.0.1:9001\"").expect("valid");
        assert!(warnings[0].contains("s3.listen") && warnings[1].contains("admin.token"), "{warnings:?}");
        let weak =
            "[cluster]\nname = \"a\"\nnodes = [\"a=node-a:8002\"]\nhomes = [\"a\"]\nsecret = \"0123456789abcdef\"\n";
        let warnings = checked(weak).expect("valid");
        assert!(warnings[0].contains("cluster.listen: other machines reach 0.0.0.0:8002"), "{warnings:?}");
        assert!(warnings[1].contains("cluster.secret: it has 16 characters"), "{warnings:?}");
        let cluster = weak.replace("0123456789abcdef", &"0123456789abcdef".repeat(2));
        for safe in ["listen = \"127.0.0.1:8002\"", "certificate = \"c.pem\"\nkey = \"k.pem\""] {
            assert!(checked(&format!("{cluster}{safe}\n")).expect("valid").is_empty(), "{safe}");
        }
    }

    #[test]
    fn files_with_secrets_are_for_few() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("steadfast.toml");
        let count = |text: &str, mode: u32| {
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("chmod");
            let mut config = Config::default();
            config.apply_file(&path).expect("valid");
            readable_secrets(&config, &config.live_options().expect("valid")).len()
        };
        for secret in [
            "[admin]\ntoken = \"t\"",
            "[live.http_api]\nkey = \"k\"",
            "[cluster]\nsecret = \"k\"",
            "[live.client.token]\nhmac_secret_key = \"k\"",
            "[events]\nwebhooks = [{ name = \"a\", url = \"http://h\", authorization = \"Bearer x\" }]",
            "[edge]\nbuckets = [{ bucket = \"media\", origin = \"http://h\", headers = { A = \"x\" } }]",
        ] {
            assert_eq!((count(secret, 0o644), count(secret, 0o640)), (1, 0), "{secret}");
        }
        assert_eq!(count("[s3]\netag = \"md5\"", 0o644), 0);
    }

    #[test]
    fn certificates_that_expire_are_warned_of() {
        const DAY: i64 = 86_400;
        assert!(certificate_warning(0, DAY).expect("expired").contains("expired 1 days ago"));
        assert!(certificate_warning(3 * DAY, 0).expect("soon").contains("in 3 days"));
        assert_eq!(certificate_warning(30 * DAY, 0), None);
    }
}
