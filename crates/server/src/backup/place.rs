//! Where exports are kept: a directory, or a prefix in a bucket of an S3 endpoint. Paths are relative, with `/` between.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use steadfast_flow::Env;

use super::Result;
use super::dir::{self, Dir};
use super::s3::{self, S3};

/// What a command says of a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaceSpec {
    /// A directory, as an absolute path.
    Dir(std::path::PathBuf),
    /// A bucket and prefix.
    S3(S3Spec),
}

/// A prefix in a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct S3Spec {
    /// The endpoint's URL.
    pub endpoint: String,
    /// Its region.
    pub region: String,
    /// The bucket.
    pub bucket: String,
    /// Before every path; empty, or ending with `/`.
    pub prefix: String,
    /// Access key.
    pub access_key: String,
    /// Secret key.
    pub secret_key: Secret,
    /// Of temporary credentials.
    pub session_token: Option<Secret>,
}

/// A text that is not shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// A place. Cloning shares it.
#[derive(Clone)]
pub enum Place {
    /// A directory.
    Dir(Dir),
    /// A prefix in a bucket.
    S3(S3),
}

impl Place {
    /// The place that is meant.
    ///
    /// # Errors
    /// When it cannot be one.
    pub fn new(spec: &PlaceSpec, env: &Env) -> Result<Self> {
        Ok(match spec {
            PlaceSpec::Dir(path) => Self::Dir(Dir::new(path, env)?),
            PlaceSpec::S3(spec) => Self::S3(S3::new(spec, env)?),
        })
    }

    /// For people.
    pub fn shown(&self) -> String {
        match self {
            Self::Dir(dir) => dir.shown(),
            Self::S3(s3) => s3.shown(),
        }
    }

    /// Bytes of a file; `None` when there is none.
    ///
    /// # Errors
    /// When it cannot be told.
    pub async fn size(&self, path: &str) -> Result<Option<u64>> {
        match self {
            Self::Dir(dir) => dir.size(path).await,
            Self::S3(s3) => s3.size(path).await,
        }
    }

    /// Bytes of a file, exactly as many as are asked for.
    ///
    /// # Errors
    /// When they are not there.
    pub async fn read(&self, path: &str, offset: u64, len: u64) -> Result<Bytes> {
        let bytes = match self {
            Self::Dir(dir) => dir.read(path, offset, len).await?,
            Self::S3(s3) => s3.read(path, offset, len).await?,
        };
        if bytes.len() as u64 == len {
            return Ok(bytes);
        }
        Err(format!("{}/{path}: {} of {len} bytes at {offset} are there", self.shown(), bytes.len()))
    }

    /// Begins a file; what is there under its name is replaced when it is finished.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn create(&self, path: &str) -> Result<Writer> {
        Ok(match self {
            Self::Dir(dir) => Writer::Dir(dir.create(path).await?),
            Self::S3(s3) => Writer::S3(s3.create(path)),
        })
    }

    /// A whole small file.
    ///
    /// # Errors
    /// Those of writing.
    pub async fn put(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let mut writer = self.create(path).await?;
        writer.write(bytes).await?;
        writer.finish().await
    }

    /// Removes a file; whether there was one.
    ///
    /// # Errors
    /// When it cannot be.
    pub async fn remove(&self, path: &str) -> Result<bool> {
        match self {
            Self::Dir(dir) => dir.remove(path).await,
            Self::S3(s3) => s3.remove(path).await,
        }
    }

    /// Makes sure that nothing of others is in the way of a folder that is to be made.
    ///
    /// # Errors
    /// When something is.
    pub async fn refuse_foreign(&self, name: &str) -> Result<()> {
        match self {
            Self::Dir(dir) => dir.refuse_foreign(name).await,
            // There are no folders; files that are in the way are replaced by the same names only.
            Self::S3(_) => Ok(()),
        }
    }
}

/// A file that is being written. It is there, whole and durable, when [`Writer::finish`] has returned, and not before.
pub enum Writer {
    /// In a directory.
    Dir(dir::Writer),
    /// In a bucket.
    S3(s3::Writer),
}

impl Writer {
    /// Appends bytes.
    ///
    /// # Errors
    /// When they cannot be written.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Dir(writer) => writer.write(bytes).await,
            Self::S3(writer) => writer.write(bytes).await,
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// When it cannot be made durable.
    pub async fn finish(self) -> Result<()> {
        match self {
            Self::Dir(writer) => writer.finish().await,
            Self::S3(writer) => writer.finish().await,
        }
    }
}
