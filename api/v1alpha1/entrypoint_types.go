package v1alpha1

// Entrypoint is the entrypoint of an image. The operator looked it up in the image's registry for a gated container without a command.
type Entrypoint struct {
	// The template that it was looked up for, by the hash in the names of the template's pods. All these pods get this entrypoint, even if
	// the image's tag moves.
	TemplateHash string `json:"templateHash"`

	// The image name in the template.
	Image string `json:"image"`

	// The digest that the registry returned for the image.
	// +optional
	Digest string `json:"digest,omitempty"`

	// The image's ENTRYPOINT. Empty if args of the template, or else the image's CMD, are the command.
	// +listType=atomic
	// +optional
	Command []string `json:"command,omitempty"`

	// The image's CMD. The template's args replace it.
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`

	// The image's STOPSIGNAL, if it is a valid value for lifecycle.stopSignal of the gated container. The process gets this signal when it
	// must stop, unless lifecycle.stopSignal names another one.
	// +optional
	StopSignal string `json:"stopSignal,omitempty"`
}
