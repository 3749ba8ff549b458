// Package sshkey makes Ed25519 key pairs in the forms of OpenSSH, from a secret.
//
// The same secret and purpose give the same pair, so that it need not be stored:
// who has the secret has the key. It holds as long as the secret is random and is
// kept; nothing of it can be taken back.
package sshkey

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
)

// Pair is a key pair.
type Pair struct {
	Private string // a PEM block, as in id_ed25519
	Public  string // "ssh-ed25519 AAAA…", as in authorized_keys, without a comment
}

const kind = "ssh-ed25519"

// Derive makes the pair of a secret for one purpose.
func Derive(secret, purpose string) (Pair, error) {
	if secret == "" {
		return Pair{}, errors.New("sshkey: derive a key: the secret is empty")
	}
	seed, err := hkdf.Key(sha256.New, []byte(secret), nil, purpose, ed25519.SeedSize)
	if err != nil {
		return Pair{}, fmt.Errorf("sshkey: derive a key: %w", err)
	}
	private := ed25519.NewKeyFromSeed(seed)
	public := blob(private)
	return Pair{
		Private: string(pem.EncodeToMemory(&pem.Block{Type: "OPENSSH PRIVATE KEY", Bytes: encode(private, public)})),
		Public:  kind + " " + base64.StdEncoding.EncodeToString(public),
	}, nil
}

// blob is the public half as in RFC 8709, section 4. A private key ends with it.
func blob(private ed25519.PrivateKey) []byte {
	return text(text(nil, kind), string(private[ed25519.SeedSize:]))
}

// encode is the private key by OpenSSH's PROTOCOL.key: not encrypted, one key.
func encode(private ed25519.PrivateKey, public []byte) []byte {
	// The two check numbers only have to be equal: nothing is encrypted.
	inner := binary.BigEndian.AppendUint32(nil, 1)
	inner = binary.BigEndian.AppendUint32(inner, 1)
	inner = append(inner, public...)
	inner = text(inner, string(private))
	inner = text(inner, "") // comment
	for pad := byte(1); len(inner)%8 != 0; pad++ {
		inner = append(inner, pad)
	}
	out := []byte("openssh-key-v1\x00")
	out = text(text(text(out, "none"), "none"), "")
	out = binary.BigEndian.AppendUint32(out, 1)
	return text(text(out, string(public)), string(inner))
}

// text appends a string behind its length, RFC 4251, section 5.
func text(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}
