package jobgen

import (
	"fmt"
	"go/format"
	"strings"
)

// upgradeFunc names the function that reads what version n of the payload stored: upgradeChargeCardV1.
func (k *kind) upgradeFunc(n int) string { return fmt.Sprintf("upgrade%sV%d", k.goName, n) }

// noteUpgrades tells which upgrade functions of a kind are yet to be written, with a form of them to start from. It is no
// mistake: emitted code names the functions, so that nothing compiles without them.
func noteUpgrades(ds *diags, s scope, k *kind) {
	var missing, paste []string
	for n := 1; n < k.version; n++ {
		if _, ok := s.decls[k.upgradeFunc(n)]; !ok {
			missing = append(missing, k.upgradeFunc(n))
			paste = append(paste, k.upgradeSkeleton(n))
		}
	}
	if missing != nil {
		ds.note(k.at["kind.v"], ruleUpgrade, strings.Join(paste, "\n"),
			"v=%d needs %s, which read stored payloads of earlier versions; until then the package does not compile. Paste this and change v to what the type was in that version:", k.version, strings.Join(missing, " and "))
	}
}

// upgradeSkeleton compiles as it is, and no more as soon as the fields differ: then the conversion has to be spelt out.
func (k *kind) upgradeSkeleton(n int) string {
	base := k.file.ast.FileStart
	fields := k.file.src[k.spec.Type.Pos()-base : k.spec.Type.End()-base]
	src := fmt.Sprintf(`// %[1]s reads what version %[2]d of %[3]s stored.
func %[1]s(old json.RawMessage) (%[3]s, error) {
	var v %[4]s
	err := json.Unmarshal(old, &v)
	return %[3]s(v), err
}
`, k.upgradeFunc(n), n, k.goName, fields)
	if formatted, err := format.Source([]byte(src)); err == nil {
		return string(formatted)
	}
	return src
}
